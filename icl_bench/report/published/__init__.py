"""The page as a folder of static files with all predictions, for any web server or none."""
