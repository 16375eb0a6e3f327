"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""
