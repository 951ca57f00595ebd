// Package storetest is the conformance suite of the store: what every
// implementation of store.Backend has to do, told through store.Store alone.
//
// No rule asserts how long something takes. A rule that is about a deadline
// waits for it with the Fixture's help, so that the suite runs in virtual time
// where a store allows that and against a real service elsewhere.
package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// Fixture is a backend under test. Several rules may share one backend at the
// same time: each opens directories with prefixes of its own.
type Fixture struct {
	Backend store.Backend
	// LeaseTTL is the lease of sessions that a rule lets lapse. A dozen calls
	// fit in it even on a busy machine. Quarantines that a rule only wants to
	// be over take a twentieth of it.
	LeaseTTL time.Duration
	// Advance returns when at least d has passed by the store's clock.
	Advance func(t *testing.T, d time.Duration)
	// Until calls cond, now and again, until it returns true, and fails the
	// test if that does not happen.
	Until func(t *testing.T, cond func() bool)
}

// Environment runs one rule with a fixture, in a synctest bubble perhaps; it
// returns when the rule has been checked.
type Environment func(t *testing.T, check func(t *testing.T, f Fixture))

// rule is one thing that a store does; its name says what.
type rule struct {
	name  string
	check func(t *testing.T, f Fixture)
}

// Run checks every rule, each in a parallel subtest of its own.
func Run(t *testing.T, in Environment) {
	t.Helper()
	for _, r := range slices.Concat(
		placementRules, choiceRules, viewRules, quarantineRules, releaseRules,
		registerRules, reclaimRules, pageRules,
		bindingRules, epochRules, envRules,
		leaseRules, drainRules, eventRules, windDownRules, stateRules, sweepRules, nameRules, raceRules, togetherRules, knownRules,
		unequalRules,
	) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			in(t, r.check)
		})
	}
}
