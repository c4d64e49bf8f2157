"""How many nodes a run needs, which of them, and what an update costs.

`system` says what a fleet and a run are in numbers; `capacity` predicts from them; `activation`
chooses nodes; `estimators` turn what is measured into those numbers; `simulator` plays the whole
system, event by event, with the hub's own lease book and buffer, to check all of them; `fleet`,
`cards`, `plan` and `show` are `echo-hub plan`. All pure but for reading files and printing. The
derivation is in docs/planning.md.
"""
