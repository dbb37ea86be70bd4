"""The tables of the shop."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012  # as Django writes them
        migrations.CreateModel(
            "Order", [("id", models.BigAutoField(primary_key=True)), ("name", models.CharField(max_length=50))]
        ),
        migrations.CreateModel(
            "Note", [("id", models.BigAutoField(primary_key=True)), ("text", models.CharField(max_length=200))]
        ),
    ]
