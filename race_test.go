//go:build race

package pinboard

// raced is how often the race detector allocates for a request.
const raced = 4
