"""Export and import of conversations (`/v1/sessions`), as a file that another server can continue."""
