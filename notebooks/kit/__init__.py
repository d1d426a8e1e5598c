"""What the notebooks of this folder have in common; Jupyter and Databricks find it beside them.

`notebook` starts a notebook, `flights` has the data, `charts` the look of the charts.
"""
