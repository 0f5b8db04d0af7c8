"""Watching, explaining and predicting: `top`, `why`, `report`, `doctor`, `plan`, `bench`, `chaos`."""
