"""The rebuilt rooms of bertlab, beside the old ones until everything has moved here."""
