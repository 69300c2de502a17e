//! A vector in pages: it grows without copying what it holds, so that growth never costs a long
//! turn and never needs the old and the new memory at once.

/// Elements a page.
const PAGE: usize = 1024;

pub(crate) struct Pages<T> {
    /// All but the last are full; a lone first page grows like any vector, since most topics are
    /// small.
    pages: Vec<Vec<T>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T> Pages<T> {
    pub(crate) fn len(&self) -> usize {
        match self.pages.split_last() {
            Some((last, full)) => full.len() * PAGE + last.len(),
            None => 0,
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.pages.get(index / PAGE)?.get(index % PAGE)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pages.get_mut(index / PAGE)?.get_mut(index % PAGE)
    }

    pub(crate) fn push(&mut self, value: T) {
        match self.pages.last_mut() {
            Some(last) if last.len() < PAGE => last.push(value),
            Some(_) => {
                let mut page = Vec::with_capacity(PAGE);
                page.push(value);
                self.pages.push(page);
            }
            None => self.pages.push(vec![value]),
        }
    }

    /// Takes an element out; the last one moves into its place.
    pub(crate) fn swap_remove(&mut self, index: usize) -> Option<T> {
        self.get(index)?;
        let last = self.pages.last_mut()?.pop()?;
        if self.pages.last().is_some_and(Vec::is_empty) {
            self.pages.pop();
        }
        match self.get_mut(index) {
            Some(place) => Some(std::mem::replace(place, last)),
            None => Some(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_vector() {
        let (mut pages, mut vector) = (Pages::default(), Vec::new());
        for n in 0..5000_usize {
            pages.push(n);
            vector.push(n);
            if n % 3 == 0 {
                let at = (n * 7919) % vector.len();
                assert_eq!(pages.swap_remove(at), Some(vector.swap_remove(at)));
            }
            assert_eq!(pages.len(), vector.len());
        }
        for (at, n) in vector.iter().enumerate() {
            assert_eq!(pages.get(at), Some(n));
        }
        while !vector.is_empty() {
            let at = vector.len() / 2;
            assert_eq!(pages.swap_remove(at), Some(vector.swap_remove(at)));
        }
        assert_eq!(pages.swap_remove(0), None);
    }
}
