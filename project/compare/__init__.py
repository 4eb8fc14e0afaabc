"""Runs side by side, from their folders alone, without torch: `python -m project compare RUN RUN ...`

command.py      the verb
find.py         which runs: folders, folders of runs, filters
settings.py     a nested configuration as dotted names, as they are typed
record.py       what one run's folder tells
sections.py     the order of logged metrics
groups.py       runs that are equal in all but seeds, their mean scores and mean curves
differences.py  what differs between groups: configuration, data, code
summary.py      the table of final scores
figure.py       the curves in panels, as SVG and as PNG
page.py         everything in one HTML file (page.html is its frame)
"""
