"""Everything that parses what comes from outside, fed with damaged versions of what is valid."""
