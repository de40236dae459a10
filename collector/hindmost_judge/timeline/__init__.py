"""Tables to blocks of [rank x step]: which steps there are, which ranks may be compared, who came late."""
