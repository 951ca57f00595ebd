package worker

import "strconv"

// reclaimed reads which epochs the claimed ids have that got theirs from a
// registration (protocol §2); entries that are not understood are passed over.
// Until a request tells of one nobody else does, and a release by another one
// frees nothing.
func (r *registration) reclaimed(a *answer) {
	if raw, ok := a.fields["epochs"]; !ok || string(raw) == "null" {
		return
	}
	epochs, ok := get[map[string]map[string]any](a, "epochs")
	malformed := !ok
	for namespace, ids := range epochs {
		for id, said := range ids {
			text, _ := said.(string)
			epoch, err := strconv.ParseInt(text, 10, 64)
			if err != nil || epoch <= 0 {
				malformed = true
				continue
			}
			k := key{namespace, id}
			if r.dir.reclaimed(k, epoch) {
				r.releases.add(released{key: k, epoch: epoch})
			}
		}
	}
	if malformed {
		r.metrics.controlFailed("register", "malformed")
		r.log.Error("registration answered with malformed epochs")
	}
}

// reclaimed takes in the epoch that a claimed id has. It reports whether the
// placement is to be released: the instance has ended since it was claimed, and
// what it released was the one before. One that closes keeps the epoch that it
// serves by, as it does when a request comes, lest it saves over what another
// owner did meanwhile.
func (d *directory) reclaimed(k key, epoch int64) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inst, now := d.instances[k], d.clock().mono
	switch {
	case inst == nil || inst.releasing:
		d.fences.giveUp(k, epoch, now)
		return true
	case inst.state == stateClosing:
		inst.claimed = epoch
	case epoch > inst.epoch.Load() && d.admit(inst, k, epoch, now) == nil:
		inst.epoch.Store(epoch)
	}
	return false
}
