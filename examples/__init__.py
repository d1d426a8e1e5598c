"""Programs that show what zeh_spark does. They are not installed: run them in a clone."""
