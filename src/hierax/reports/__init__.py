"""Reports on runs: one HTML page that needs no network, and figures for notebooks.

`sol.report(path)`, `sol.plot()` and `hierax report DIR ...` come to `folder`. The facts of a run (`facts`) are the JSON
that `hierax solve` writes too; `page` makes the page of them, `figures` its charts of the `panels`.
"""
