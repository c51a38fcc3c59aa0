"""Ready-made workloads: real models and real text or digits, from packages of the registry.

Importing these modules is light: their packages are found when a workload is made and imported when its
model is built. Nothing is downloaded at run time.
"""
