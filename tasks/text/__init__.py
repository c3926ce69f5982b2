"""What is known of each sentence: its words, which of them may be masked, and its vector."""
