"""Publishing a DataFrame: its rows become events of a feed, each batch once."""
