package resources

import (
	"math"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// minInterval is the shortest time over which the processor's share is
// measured: the kernel counts in hundredths of a second.
const minInterval = 100 * time.Millisecond

// Process measures this process. Its methods are safe for concurrent use.
type Process struct {
	root string

	mu      sync.Mutex
	begun   bool
	at      time.Duration // of the reading that the next share is counted from
	seconds float64       // of processor time, until then
	percent float64       // the share found then
}

// NewProcess returns a Process that reads below root.
func NewProcess(root string) *Process { return &Process{root: root} }

// Usage is what a process uses.
type Usage struct {
	ResidentBytes int64
	// CPUPercent is the share of one processor since the reading before, in
	// tenths: above 100 on several, and 0 in the first reading.
	CPUPercent float64
}

// Read returns the usage at a time, counted from any moment, and false where it
// is unknown. A reading less than 100 ms after another one repeats its share, so
// that two readers do not take each other's interval away.
func (p *Process) Read(now time.Duration) (Usage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stat, err := p.stat()
	if err != nil {
		return Usage{}, false
	}
	elapsed := now - p.at
	switch {
	case !p.begun:
		p.begun, p.at, p.seconds = true, now, stat.CPUTime()
	case elapsed >= minInterval:
		share := 100 * (stat.CPUTime() - p.seconds) / elapsed.Seconds()
		p.percent = max(0, math.Round(10*share)/10)
		p.at, p.seconds = now, stat.CPUTime()
	}
	return Usage{ResidentBytes: int64(stat.ResidentMemory()), CPUPercent: p.percent}, true
}

func (p *Process) stat() (procfs.ProcStat, error) {
	proc, err := procfs.NewFS(filepath.Join(p.root, "proc"))
	if err != nil {
		return procfs.ProcStat{}, err
	}
	self, err := proc.Self()
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return self.Stat()
}
