package redis

import (
	"context"
	"math/rand/v2"
	"slices"
)

// forgetTogether is how many bindings one Sweep looks at to forget them.
const forgetTogether = 32

// forget forgets some of the bindings that nobody has served for so long that
// no worker of theirs is remembered any more: a fleet may have bound many host
// names in its life, and a sweep looks at all bindings that it knows.
//
// What is in the buckets goes before the fleet's entry, so that a node that dies
// in between leaves something to find. A worker that registers meanwhile is in
// the fleet's record before it is in a bucket: either the bucket is not empty or
// it is made anew, and the entry stays.
func (d *directory) forget(ctx context.Context, bindings []string) error {
	if most := len(bindings) - forgetTogether; most > 0 {
		start := rand.IntN(most + 1)
		bindings = bindings[start : start+forgetTogether]
	}
	vacant, err := d.vacant(ctx, bindings, false)
	if err != nil || len(vacant) == 0 {
		return err
	}
	var calls []call
	for _, b := range d.keys.buckets(vacant) {
		calls = append(calls, forgetScript.with([]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves()}))
	}
	answers := d.runAll(ctx, calls)
	var empty []string
	for i, binding := range vacant {
		of := answers[i*d.keys.shards : (i+1)*d.keys.shards]
		if !slices.ContainsFunc(of, func(a *answer) bool { return !a.flag() }) {
			empty = append(empty, binding)
		}
	}
	if err := firstError(answers); err != nil || len(empty) == 0 {
		return err
	}
	_, err = d.vacant(ctx, empty, true)
	return err
}

// vacant returns those of the bindings that no worker is remembered to have
// served, and takes them off the fleet's list if so told.
func (d *directory) vacant(ctx context.Context, bindings []string, drop bool) (vacant []string, err error) {
	if len(bindings) == 0 {
		return nil, nil
	}
	fleet := d.keys.fleet()
	args := []any{string(fleet), drop}
	for _, binding := range bindings {
		args = append(args, binding, escape(binding))
	}
	a := d.run(ctx, vacantScript.with([]string{fleet.namespaces()}, args...))
	for a.more() {
		vacant = append(vacant, a.text())
	}
	return vacant, a.err
}
