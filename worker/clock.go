package worker

import "time"

// instant is one moment, read on two clocks.
//
// Neither clock alone keeps a lease. Go's monotonic readings come from
// CLOCK_MONOTONIC, which on Linux stands still while the machine is suspended:
// after an hour of sleep a 15 s lease would seem to have 12 s left. The wall
// clock is set right when the machine wakes, but may be stepped at any time,
// also back. So a deadline is reached as soon as either clock says so
// (instant.reached): a suspend is seen by the wall clock, a step back does not
// hide from the monotonic one, and a step forward only ends a lease early,
// until the next heartbeat. What neither shows is a pause of a virtual machine
// whose hypervisor stops both and corrects neither: there the attestation's
// issue time, minted by pinboard, is too far in the future (protocol §5), and
// the placement epoch fences the instance's store.
type instant struct {
	mono time.Duration // since the process started
	wall time.Time     // without a monotonic reading
}

// add returns the instant d later on both clocks.
func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall.Add(d)}
}

// reached reports whether i is at or past the deadline on either clock.
func (i instant) reached(deadline instant) bool {
	return i.mono >= deadline.mono || !i.wall.Before(deadline.wall)
}

// clock reads both clocks at once.
type clock func() instant

var processStart = time.Now()

func systemClock() instant {
	now := time.Now()
	return instant{mono: now.Sub(processStart), wall: now.Round(0)}
}
