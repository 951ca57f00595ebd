package pinboard

import (
	"sync"
	"time"
)

// maxRoutes bounds each of the two generations of remembered routes.
const maxRoutes = 50_000

// routeMemory remembers where ids were last found: for the time when the store
// does not answer, and to tell ids that this node has had before. It is a hint:
// whoever uses it must see that the owner's lease still runs. When the young
// generation is full it becomes the old one, and what was not used since is
// forgotten. The zero routeMemory is empty.
type routeMemory struct {
	mu         sync.Mutex
	young, old map[instance]route
}

func (m *routeMemory) put(i instance, rt route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(i, rt)
}

// note is put; the caller holds the lock.
func (m *routeMemory) note(i instance, rt route) {
	if m.young == nil {
		m.young = map[instance]route{}
	}
	m.young[i] = rt
	delete(m.old, i)
	if len(m.young) >= maxRoutes {
		m.young, m.old = map[instance]route{}, m.young
	}
}

// renewEvery is how much longer a route has to be good for to be noted anew.
const renewEvery = time.Second

// renew is put for what get has returned, unless it would change little.
func (m *routeMemory) renew(i instance, had, rt route) {
	if !had.same(rt) || rt.until.Sub(had.until) >= renewEvery {
		m.put(i, rt)
	}
}

// get returns where the id was last found.
func (m *routeMemory) get(i instance) (route, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rt, ok := m.young[i]
	if ok {
		return rt, true
	}
	if rt, ok = m.old[i]; ok {
		m.note(i, rt)
	}
	return rt, ok
}

func (m *routeMemory) drop(i instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.young, i)
	delete(m.old, i)
}
