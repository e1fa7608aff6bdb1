"""The console: web pages for the people of a tenant and the operators of the mesh."""
