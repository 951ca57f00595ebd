package hop

import (
	"cmp"
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// edge has epoll tell only of what is new.
	edge = 1 << 31
	// last is what comes with the end, or with what a read stops short at.
	last = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR | syscall.EPOLLPRI
)

// lookEvery is how often those connections are looked for that end here: see epoll.look.
const lookEvery = 5 * time.Second

// lookAtOnce is how many numbers of sockets are looked at while nothing else is told,
// and nobody comes or goes: each takes up to a microsecond, and there may be 10,000s.
const lookAtOnce = 128

// lookout is a Lookout.
type lookout struct {
	every time.Duration // 0 for lookEvery

	mu      sync.Mutex
	current *epoll // nil while nothing is watched
}

// epoll is a set of sockets that one goroutine waits for. That waits by the
// runtime's own poller, and so blocks no thread.
type epoll struct {
	of   *lookout
	file *os.File
	fd   int // of file
	done chan struct{}

	watching int // guarded by lookout.mu

	mu      sync.Mutex
	byFD    map[int32]*Watched
	highest int32 // number there has been in byFD
}

// Watched is a connection that is watched.
type Watched struct {
	set  *epoll
	told Told
	raw  syscall.RawConn
	fd   int32
}

func (l *lookout) watch(conn net.Conn, t Told) *Watched {
	raw := socket(conn)
	if raw == nil {
		return nil
	}
	set := l.enter()
	if set == nil {
		return nil
	}
	w := &Watched{set: set, told: t, raw: raw}
	if !set.add(w) {
		l.leave(set)
		return nil
	}
	return w
}

// enter returns the set, with a place in it.
func (l *lookout) enter() *epoll {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		l.current = newEpoll(l)
	}
	if l.current != nil {
		l.current.watching++
	}
	return l.current
}

// leave gives a place back. The last one ends the set, and waits for that.
func (l *lookout) leave(set *epoll) {
	l.mu.Lock()
	set.watching--
	last := set.watching == 0
	if last {
		l.current = nil
	}
	l.mu.Unlock()
	if last {
		_ = set.file.Close()
		<-set.done
	}
}

// newEpoll starts a set; nil if the system lets it not.
func newEpoll(of *lookout) *epoll {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	_ = syscall.SetNonblock(fd, true) // so that the runtime polls it
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	every := cmp.Or(of.every, lookEvery)
	if err != nil || file.SetReadDeadline(time.Now().Add(every)) != nil { // which only polled files have
		_ = file.Close()
		return nil
	}
	set := &epoll{of: of, file: file, fd: fd, done: make(chan struct{}), byFD: map[int32]*Watched{}}
	go func() {
		defer close(set.done)
		var events [128]syscall.EpollEvent
		wait := func(uintptr) bool {
			set.tell(events[:])
			return false
		}
		for errors.Is(raw.Read(wait), os.ErrDeadlineExceeded) { // else it is closed
			set.look()
			_ = file.SetReadDeadline(time.Now().Add(every))
		}
	}()
	return set
}

// look tells of the connections that nobody can read from any more: those that were
// closed here, which epoll forgets without a word, and those whose deadline is over. Who
// waits in a Read is told of that by the runtime.
func (set *epoll) look() {
	for from, more := int32(0), true; more; from += lookAtOnce {
		more = set.lookFrom(from)
		runtime.Gosched() // who waits for the lock has a turn
	}
}

// lookFrom looks at the sockets with so many numbers, and reports whether there are
// higher ones.
func (set *epoll) lookFrom(from int32) (more bool) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for fd := from; fd < from+lookAtOnce; fd++ {
		if w := set.byFD[fd]; w != nil && w.raw.Read(func(uintptr) bool { return true }) != nil {
			w.told.Told(true)
		}
	}
	return from+lookAtOnce <= set.highest
}

// tell tells of all that has come.
func (set *epoll) tell(events []syscall.EpollEvent) {
	for {
		n, err := syscall.EpollWait(set.fd, events, 0)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		set.mu.Lock()
		for _, e := range events[:n] {
			// The socket may be another one by now, with the same number. Nothing is
			// wrong with looking at it in vain.
			if w := set.byFD[e.Fd]; w != nil {
				w.told.Told(e.Events&last != 0)
			}
		}
		set.mu.Unlock()
		if n < len(events) {
			return
		}
	}
}

func (set *epoll) add(w *Watched) (ok bool) {
	_ = w.raw.Control(func(fd uintptr) {
		w.fd = int32(fd)
		set.mu.Lock()
		defer set.mu.Unlock()
		event := syscall.EpollEvent{Events: syscall.EPOLLIN | last | edge, Fd: w.fd}
		if ok = syscall.EpollCtl(set.fd, syscall.EPOLL_CTL_ADD, int(fd), &event) == nil; ok {
			if old := set.byFD[w.fd]; old != nil {
				old.told.Told(true) // it was closed, and nobody looks for it any more
			}
			set.byFD[w.fd] = w
			set.highest = max(set.highest, w.fd)
		}
	})
	return ok
}

// End ends that: nobody is told any more when it returns. The connection may have been
// closed. It must be called once, unless w is nil.
func (w *Watched) End() {
	if w == nil {
		return
	}
	set := w.set
	// What was closed has left the set, and its number may be another one's.
	_ = w.raw.Control(func(fd uintptr) { _ = syscall.EpollCtl(set.fd, syscall.EPOLL_CTL_DEL, int(fd), nil) })
	set.mu.Lock()
	if set.byFD[w.fd] == w {
		delete(set.byFD, w.fd)
	}
	set.mu.Unlock()
	set.of.leave(set)
}
