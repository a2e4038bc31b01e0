"""How one model is spread over many processes: the mesh, and one file per dimension of it."""
