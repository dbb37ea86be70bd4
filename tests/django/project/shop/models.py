"""Orders, and a note for each task that ran."""

from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=50)


class Note(models.Model):
    text = models.CharField(max_length=200)
