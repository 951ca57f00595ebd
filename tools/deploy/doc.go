// Package deploy checks the Dockerfile and the examples for Kubernetes and
// docker compose as far as that goes without a cluster and without an engine.
package deploy
