"""What people look at: curves while a run trains, its results, and SHINE's Figures 6 and 7, as page and HTML file."""
