"""The study: the paper's claims as experiments that anyone can rerun.

Read in this order: `experiment` (declarations), `plan` (runs), `runner` and `worker` (processes),
`trainings`, `evaluation`, `synthetic` and `speed` (what a run does), `results` (what it leaves),
`measures`, `verdicts`, `figures` and `report`.
"""
