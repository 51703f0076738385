"""What commands print: tables, lists, progress."""
