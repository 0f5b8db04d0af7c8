"""Buckets of S3, Google Cloud Storage and Azure: their URLs, their objects, and what their errors mean."""
