// Checks of the examples for deployments, apart from the module's own
// dependencies: the types of Kubernetes and of the compose specification.
module github.com/pinboard-go/pinboard/tools/deploy

go 1.26.0

replace github.com/pinboard-go/pinboard => ../..
