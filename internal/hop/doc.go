// Package hop holds the parts of the data plane that know nothing of pinboard:
// a request body that can be sent twice, buffers for streams that mostly idle, a
// lookout for what comes by them, and the frame boundaries of a WebSocket.
package hop
