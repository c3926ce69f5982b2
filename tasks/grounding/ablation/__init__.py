"""The papers' tables: grids of trainings over one data set, and one table of what came out."""
