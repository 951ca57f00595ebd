// Package wire holds what pinboard and its workers say to each other: names,
// header names, and the JSON bodies of the registry (protocol §§1-3, 5, 6).
//
// Both sides import it, so that neither can drift from the other. It knows
// nothing of HTTP servers, stores or policies.
package wire
