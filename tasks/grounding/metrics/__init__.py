"""The field's figures, from windows and scores alone."""
