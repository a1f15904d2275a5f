"""The trainings that are measured; each is a program for one worker."""
