"""Text: corpora, tokenizers, and batches of sentences."""
