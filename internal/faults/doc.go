// Package faults checks what pinboard promises while things break.
//
// Its tests run a fleet of real processes (pinboard nodes, Go and Python
// workers, a redis-server) with a gate between any two of them, inflict the
// faults of a seeded schedule on it while clients write numbered operations to
// ids, and check the record afterwards: what the workers wrote into their
// journals, and what the clients were answered. See docs/faults.md.
//
// The package itself holds what is not about processes: the record (Event, Ack),
// the checker (Check), the schedule (Schedule), and the gates (Gate, Link).
package faults
