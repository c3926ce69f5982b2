"""The words of each sentence, which of them may be masked, and sentence vectors."""
