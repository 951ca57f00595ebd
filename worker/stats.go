package worker

// Stats is what a worker tells operators about itself (protocol §3).
type Stats struct {
	// Draining: a drain of its own or an operator's is on.
	Draining bool `json:"draining"`
	// LeaseFlaps counts how often no heartbeat was accepted in time.
	LeaseFlaps int `json:"leaseFlaps"`
	// Reregistrations counts the sessions that pinboard no longer knew.
	Reregistrations int64                     `json:"reregistrations"`
	Namespaces      map[string]NamespaceStats `json:"namespaces"`
	Instances       []InstanceStats           `json:"instances"`
	Process         ProcessStats              `json:"process"`
}

// NamespaceStats counts over the life of the worker.
type NamespaceStats struct {
	Activations int64 `json:"activations"`
	// Evictions counts the ends of instances, for whatever cause.
	Evictions int64 `json:"evictions"`
}

// InstanceStats is one live instance.
type InstanceStats struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	// Connections counts open streams and hijacked connections, Tasks
	// everything else that is under way: plain requests and Instance.Go.
	Connections int `json:"connections"`
	Tasks       int `json:"tasks"`
	// IdleMs is the time since something that held the instance last ended.
	IdleMs int64 `json:"idleMs"`
	// ActivatedAt is a Unix time in milliseconds.
	ActivatedAt int64 `json:"activatedAt"`
}

// ProcessStats is the process as a whole.
type ProcessStats struct {
	UptimeMs int64 `json:"uptimeMs"`
	// RSSBytes is the resident memory, 0 where it is unknown, as outside of
	// Linux.
	RSSBytes int64 `json:"rssBytes,omitempty"`
	// CPUPercent is the share of one processor since the figures before, nil
	// where it is unknown: above 100 on several, and 0 the first time. Figures
	// less than 100 ms after others repeat their share.
	CPUPercent *float64 `json:"cpuPercent,omitempty"`
}

// Stats returns the current figures.
func (w *Worker) Stats() Stats {
	s := Stats{
		LeaseFlaps:      w.lease.flaps(),
		Reregistrations: w.reg.reregistrations.Load(),
		Namespaces:      map[string]NamespaceStats{},
		Process:         w.processStats(),
	}
	for _, namespace := range w.namespaces() {
		s.Namespaces[namespace] = NamespaceStats{}
	}
	w.dir.fill(&s)
	return s
}

func (w *Worker) processStats() ProcessStats {
	now := w.clock().mono
	s := ProcessStats{UptimeMs: (now - w.born).Milliseconds()}
	if usage, ok := w.process.Read(now); ok {
		s.RSSBytes, s.CPUPercent = usage.ResidentBytes, &usage.CPUPercent
	}
	return s
}

func (d *directory) fill(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Draining = d.draining()
	for namespace, counts := range d.counts {
		s.Namespaces[namespace] = *counts
	}
	now := d.clock().mono
	s.Instances = make([]InstanceStats, 0, len(d.instances))
	for _, inst := range d.instances {
		if inst.activatedAt.IsZero() {
			continue
		}
		s.Instances = append(s.Instances, InstanceStats{
			Namespace: inst.namespace, ID: inst.id,
			Connections: inst.streams, Tasks: inst.plain + inst.tasks,
			IdleMs:      (now - inst.idleSince).Milliseconds(),
			ActivatedAt: inst.activatedAt.UnixMilli(),
		})
	}
}

// stats returns the counters of a namespace. Called with the lock held.
func (d *directory) stats(namespace string) *NamespaceStats {
	counts := d.counts[namespace]
	if counts == nil {
		counts = &NamespaceStats{}
		d.counts[namespace] = counts
	}
	return counts
}
