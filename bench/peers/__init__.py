"""Rota and its peers, each as a program of the same few commands:

    prepare    create the tables on an empty store
    enqueue    enqueue `count` jobs in bulk; answers with the seconds that it took
    worker     run jobs until killed
    paced      one job every `gap` seconds; answers with the times before and after each call
    later      a job for each of these due times
    schedules  create `count` cron schedules, hardly ever due; answers with the seconds that it took

The command is the program's argument, its values come as JSON on stdin, the answer is a line of JSON on stdout.
A handler appends its number and start time to a file.
"""
