"""The experiments of papers, and the trainings that they need."""
