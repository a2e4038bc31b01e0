"""Objects of object stores: listing, looking up, exact byte ranges, whole files, with retries."""
