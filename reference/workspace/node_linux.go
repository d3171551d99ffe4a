// SPDX-License-Identifier: Apache-2.0

package workspace

import "golang.org/x/sys/unix"

// node is a watched directory.
type node struct {
	wd       int32
	dev, ino uint64 // the watch pins the inode, so the number is not used again
	parent   *node  // nil for the root
	name     string
	children map[string]*node
	past     [3]event // the last ones about its names, the latest first
}

func (n *node) remember(e event) {
	copy(n.past[1:], n.past[:])
	n.past[0] = e
}

// path is that of name in n; nil when it is too long to have one.
func (n *node) path(name string) []byte {
	size := len(name)
	for a := n; a.parent != nil; a = a.parent {
		size += 1 + len(a.name)
	}
	if size > MaxPath {
		return nil
	}
	p := make([]byte, size)
	end := size - copy(p[size-len(name):], name)
	for a := n; a.parent != nil; a = a.parent {
		end--
		p[end] = '/'
		end -= len(a.name)
		copy(p[end:], a.name)
	}
	return p
}

// attach gives n its name, which nothing else has.
func (v *view) attach(n, parent *node, name string) error {
	for a := parent; a != nil; a = a.parent {
		if a == n { // names of two different moments
			return errResync
		}
	}
	n.detach()
	v.forget(parent, name)
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[name], n.parent, n.name = n, parent, name
	return nil
}

func (n *node) detach() {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}

// forget drops the directory of that name, if one is known.
func (v *view) forget(n *node, name string) {
	if x := n.children[name]; x != nil {
		v.drop(x)
	}
}

// drop stops to watch n and everything in it.
func (v *view) drop(n *node) {
	n.detach()
	for list := []*node{n}; len(list) > 0; {
		x := list[len(list)-1]
		list = list[:len(list)-1]
		for _, c := range x.children {
			list = append(list, c)
		}
		x.children = nil
		if v.nodes[x.wd] == x {
			delete(v.nodes, x.wd)
			v.unwatch(x.wd)
		}
	}
}

func (v *view) unwatch(wd int32) {
	_, _ = unix.InotifyRmWatch(v.fd, uint32(wd)) // EINVAL: the kernel was first
}
