"""What a card is checked for and measured by: one file a part."""
