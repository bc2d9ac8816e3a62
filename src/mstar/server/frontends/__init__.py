"""Several front ends on one port: their state, their view of the deployment, and requests for what another one has."""
