"""The package as it goes out: built, checked, installed as users do, and tried.

`make release` does all of it, for the version of the checkout. pytest collects nothing here.

- `artifacts`: wheel and sdist in `dist/`, and that they hold what they should and no more;
- `sbom`: what they bring along, as CycloneDX documents in `dist/`, and the table of licences;
- `smoke`: an empty environment for each Spark, and a user's first jobs in it (`first_jobs.py`).

Rule for editors: `smoke` takes the files of `dist/` as they are, so that what is published is what
was tried.
"""
