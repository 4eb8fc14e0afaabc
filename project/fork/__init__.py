"""A project of one's own, made of this one by `python -m project new PATH --name NAME`.

What is where:
    rename.py   the package's name, wherever a file means the package
    parts.py    what a fork can leave out
    command.py  python -m project new
"""
