"""What a seed decides about single features, each drawn by itself: runs without one stay as they are."""
