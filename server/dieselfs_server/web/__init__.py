"""The web page of a server: what it stores, who reads it, and what it does now. Read-only.

`page.py` decides when it is served, `serving.py` listens, `app.py` answers requests. What they show comes from
`facts.py` (datasets, jobs), `contents.py` (files), `live.py` (rates) and `others.py` (the other servers); the views,
the plots and the rules of access are functions without I/O.
"""
