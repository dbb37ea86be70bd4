"""Rota and its peers, each as a program of the same few commands:

    prepare    make the tables on an empty store
    enqueue    so many jobs in bulk; answers with the seconds that it took
    worker     work until killed
    paced      one job every `gap` seconds; answers with the moments before and after each call
    later      a job for each of these moments
    schedules  so many cron schedules, hardly ever due; answers with the seconds that it took

The command is the program's argument, its values come as JSON on stdin, the answer is a line of JSON on stdout.
A handler leaves its mark in a file: number and moment of its start.
"""
